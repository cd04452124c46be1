"""Tables for other people's readers: the same files, described in formats that these know."""
