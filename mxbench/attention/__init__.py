"""What is computed: the space of attention methods, the table of named ones, and the reference in plain torch."""
