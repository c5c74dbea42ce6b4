"""What runs on the host: plain Python 3.10 and its standard library, joined into the one file `unbundle.py`."""
