pub(crate) mod address_map;
pub(crate) mod chunks;
pub(crate) mod free_index;
pub(crate) mod probing;
pub(crate) mod region_growth;
pub(crate) mod regions;
pub(crate) mod size_classes;
