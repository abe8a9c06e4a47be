"""What every room uses and what knows no tensor: settings, counters, lines of the user's program, errors, Ctrl-C."""
