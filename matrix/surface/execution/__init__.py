"""Abstract execution of the subject: what its code would do against a target, without importing either."""
