pub(crate) mod captures;
pub(crate) mod contexts;
pub(crate) mod internal_streams;
pub(crate) mod relations;
pub(crate) mod user_contexts;
