"""Type-checked programs: types reach from a serde to user code."""
