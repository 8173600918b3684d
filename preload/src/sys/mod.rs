pub(crate) mod file_name;
pub(crate) mod lock;
pub(crate) mod mapped_file;
pub(crate) mod process;
pub(crate) mod text;
