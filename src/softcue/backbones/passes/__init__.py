"""One batch through one backbone: a class per kind of backbone."""
