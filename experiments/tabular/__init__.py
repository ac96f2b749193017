"""Tables with columns of numbers and categories: `tabular/breast_cancer` and `tabular/csv`."""
