pub(crate) mod dlsym;
