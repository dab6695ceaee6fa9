//! Reasons as sentences.
