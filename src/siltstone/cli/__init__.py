"""The command line: each command parses, calls one function, and hands the result and its text to the output."""
