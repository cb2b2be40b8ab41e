//! What goes over the wire, as structs.
