"""The tier `surface`: does the code of one release still fit the code of the others, read and never imported."""
