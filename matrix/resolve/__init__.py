"""The tier `resolve`: may this cell be installed, and as what exactly."""
