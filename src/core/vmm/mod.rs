pub(crate) mod unmapped;
