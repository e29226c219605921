//! One operation a file: which kernel, how many blocks, which arguments.

mod embed;
