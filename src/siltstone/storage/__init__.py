"""Storage: the interface, and its implementation on object stores and local folders."""
