//! Behaviour of the kernels: every backend against the reference, over the shared table of cases.

mod conformance;
