"""The package as a type checker sees it in a project: `right` has no error, and each marked line of `wrong` has one."""
