//! libbfc
