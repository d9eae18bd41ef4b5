//! The table of messages under way.
