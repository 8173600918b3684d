pub(crate) mod functions;
