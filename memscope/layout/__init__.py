"""From an HLO graph to places on a plane: what of it is shown, what of that the layout sees, and where it goes."""
