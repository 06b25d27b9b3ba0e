"""The package as a type checker sees it from a project: `right` has no error, and each line of `wrong` that says so has one."""
