"""The example's shop with a desk beside it: tasks that write mail, tell a partner and make reports, for what support staff look up."""
