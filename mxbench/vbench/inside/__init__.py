"""What runs in the interpreter that holds vbench. Nothing of mxbench is imported here."""
