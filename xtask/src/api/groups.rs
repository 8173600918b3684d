//! In which order the API is told: what belongs together.

/// Names that are explained in one section.
pub struct Group {
    /// The section's title.
    pub title: &'static str,
    /// What belongs to it, in order. One that ends in `*` stands for all that begin so.
    pub names: &'static [&'static str],
}

impl Group {
    /// The place of a name in the group; nothing if it is of another.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|own| match own.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => *own == name,
        })
    }
}

/// The functions of bfc.h and bfc_adapters.h.
pub const FUNCTIONS: &[Group] = &[
    Group {
        title: "Creating and ending an allocator",
        names: &[
            "bfc_create",
            "bfc_destroy",
            "bfc_destroy_forced",
            "bfc_device_lost",
            "bfc_set_memory_limit",
            "bfc_set_region_callback",
        ],
    },
    Group {
        title: "Allocating and freeing",
        names: &["bfc_alloc", "bfc_alloc_aligned", "bfc_alloc_ex", "bfc_free", "bfc_trim"],
    },
    Group {
        title: "In the order of streams",
        names: &[
            "bfc_alloc_async",
            "bfc_free_async",
            "bfc_record_stream",
            "bfc_stream_synchronized",
            "bfc_forget_stream",
        ],
    },
    Group { title: "Private pools, for captured graphs", names: &["bfc_pool_*", "bfc_capture_*"] },
    Group {
        title: "Timestamps",
        names: &["bfc_timestamp", "bfc_set_safe_frontier", "bfc_alloc_freed_before"],
    },
    Group {
        title: "Asking about a pointer",
        names: &[
            "bfc_requested_size",
            "bfc_allocated_size",
            "bfc_allocation_id",
            "bfc_address_range",
            "bfc_owner",
        ],
    },
    Group {
        title: "Statistics and reports",
        names: &[
            "bfc_stats",
            "bfc_reset_stats",
            "bfc_report",
            "bfc_occupancy",
            "bfc_memory_map",
            "bfc_resolve_options",
            "bfc_scope_begin",
            "bfc_scope_end",
            "bfc_check",
        ],
    },
    Group {
        title: "Errors, messages, version",
        names: &["bfc_last_error", "bfc_status_string", "bfc_set_log_callback", "bfc_version"],
    },
    Group { title: "For all adapters", names: &["bfc_adapter_*"] },
    Group { title: "PyTorch", names: &["bfc_torch_*"] },
    Group { title: "CuPy", names: &["bfc_cupy_*"] },
    Group { title: "ONNX Runtime", names: &["bfc_ort_*"] },
    Group { title: "Handlers: cuTensorNet, nvJPEG", names: &["bfc_handler_*"] },
];

/// The constants of bfc.h.
pub const CONSTANTS: &[Group] = &[
    Group { title: "Statuses", names: &["BFC_OK", "BFC_ERROR_*"] },
    Group { title: "Backends", names: &["BFC_BACKEND_*"] },
    Group {
        title: "Flags of an allocator",
        names: &[
            "BFC_ALLOW_GROWTH",
            "BFC_GARBAGE_COLLECTION",
            "BFC_SPLIT_ALWAYS",
            "BFC_TIMESTAMPS",
            "BFC_QUARANTINE",
        ],
    },
    Group {
        title: "Flags of a request",
        names: &["BFC_REQUEST_ON_STREAM", "BFC_REQUEST_NO_GROWTH", "BFC_REQUEST_SIZE_512"],
    },
    Group { title: "Private pools", names: &["BFC_POOL_*"] },
    Group { title: "Default streams", names: &["BFC_STREAM_*"] },
    Group { title: "Levels of messages", names: &["BFC_LOG_*"] },
    Group { title: "Events of regions", names: &["BFC_REGION_*"] },
    Group {
        title: "Initializers",
        names: &["BFC_OPTIONS_INIT", "BFC_SUBALLOCATOR_INIT", "BFC_REQUEST_INIT", "BFC_STATS_INIT"],
    },
    Group { title: "Version", names: &["BFC_VERSION_*"] },
];

/// The names in their groups, those of a group in its order; and what is in none of them, or in two.
pub fn sorted<'a>(
    groups: &'static [Group],
    names: &[&'a str],
) -> (Vec<(&'static str, Vec<&'a str>)>, Vec<String>) {
    let mut found = Vec::new();
    for group in groups {
        let mut own: Vec<_> = names
            .iter()
            .enumerate()
            .filter_map(|(at, name)| Some((group.position(name)?, at, *name)))
            .collect();
        own.sort_unstable();
        if !own.is_empty() {
            found.push((group.title, own.into_iter().map(|(_, _, name)| name).collect::<Vec<_>>()));
        }
    }
    let mut wrong = Vec::new();
    for name in names {
        let times = groups.iter().filter(|group| group.position(name).is_some()).count();
        if times != 1 {
            wrong.push(format!("{name} is in {times} groups of xtask/src/api/groups.rs"));
        }
    }
    (found, wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_in_the_order_of_their_groups() {
        let names = ["bfc_torch_b", "bfc_free", "bfc_torch_a", "bfc_alloc"];
        let (found, wrong) = sorted(FUNCTIONS, &names);
        let expected = [
            ("Allocating and freeing", vec!["bfc_alloc", "bfc_free"]),
            ("PyTorch", vec!["bfc_torch_b", "bfc_torch_a"]),
        ];
        assert_eq!(found, expected);
        assert!(wrong.is_empty());
    }

    #[test]
    fn a_name_without_a_group_is_found() {
        let (_, wrong) = sorted(FUNCTIONS, &["bfc_new"]);
        assert_eq!(wrong, ["bfc_new is in 0 groups of xtask/src/api/groups.rs"]);
    }
}
