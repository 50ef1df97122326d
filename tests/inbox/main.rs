//! Every queue: the conformance suite, and the behaviour of its own.

mod memory;
