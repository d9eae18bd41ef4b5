//! Tests on a real device.
