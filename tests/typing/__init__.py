"""Files that type checkers read and nobody runs: types reach from a serde to the user's code."""
