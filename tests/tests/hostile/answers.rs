//! What requests ask for, what answers say of themselves, and what one client learns of another.
