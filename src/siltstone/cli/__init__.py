"""The command line: each command parses, calls one function, and hands the result to the output."""
