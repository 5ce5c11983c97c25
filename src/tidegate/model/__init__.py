"""Words everything else is written in: ids, elements, errors, units, the clock. Imports no other layer."""
