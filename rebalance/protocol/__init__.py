"""Wire format of the control topics."""
