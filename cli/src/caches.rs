//! What MPI libraries are told so that they leave their registration caches, and the hooks
//! that keep these right, off: with the shim on a registration costs a look-up.

/// A variable, its value, and other names under which the user may have set the same.
struct Word {
    name: &'static str,
    value: &'static str,
    synonyms: &'static [&'static str],
}

const fn word(name: &'static str, value: &'static str) -> Word {
    Word {
        name,
        value,
        synonyms: &[],
    }
}

/// UCX's, libfabric's and Open MPI's. MPICH has no cache of its own: UCX or libfabric has.
const WORDS: &[Word] = &[
    // UCX up to 1.14; later ones know the next instead.
    word("UCX_IB_REG_METHODS", "direct"),
    word("UCX_RCACHE_ENABLE", "n"),
    word("UCX_MEM_EVENTS", "n"),
    // What a registration costs now, for its choice of a protocol.
    word("UCX_IB_MEM_REG_OVERHEAD", "0.2us"),
    word("UCX_IB_MEM_REG_GROWTH", "0ns"),
    // Each version knows but some of these, and would warn of the others.
    word("UCX_WARN_UNUSED_ENV_VARS", "n"),
    word("FI_MR_CACHE_MAX_COUNT", "0"),
    word("FI_MR_CACHE_MONITOR", "disabled"),
    word("OMPI_MCA_memory", "^patcher"),
    Word {
        name: "OMPI_MCA_opal_common_ucx_opal_mem_hooks",
        value: "0",
        synonyms: &[
            "OMPI_MCA_pml_ucx_opal_mem_hooks",
            "OMPI_MCA_osc_ucx_opal_mem_hooks",
        ],
    },
    Word {
        name: "OMPI_MCA_mpi_leave_pinned",
        value: "0",
        synonyms: &["OMPI_MCA_opal_leave_pinned"],
    },
];

/// What is set, and the names of what the user has set, which stays.
pub struct Off {
    pub set: Vec<(&'static str, &'static str)>,
    kept: Vec<&'static str>,
}

impl Off {
    /// Beside what the user has in the environment.
    pub fn beside(users: impl Fn(&str) -> bool) -> Self {
        let theirs = |w: &Word| {
            let mut names = std::iter::once(&w.name).chain(w.synonyms);
            names.find(|name| users(name)).copied()
        };
        let mut off = Self {
            set: Vec::new(),
            kept: Vec::new(),
        };
        for w in WORDS {
            match theirs(w) {
                Some(name) => off.kept.push(name),
                None => off.set.push((w.name, w.value)),
            }
        }
        off
    }

    /// One line for the user.
    pub fn said(&self) -> String {
        let pairs = self.set.iter();
        let set: Vec<_> = pairs
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let mut line = format!("--no-caches sets {}", set.join(" "));
        if set.is_empty() {
            line = "--no-caches sets nothing".to_string();
        }
        if !self.kept.is_empty() {
            line += &format!("; as you have set them: {}", self.kept.join(" "));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_has_set_stays() {
        let theirs = ["UCX_MEM_EVENTS", "OMPI_MCA_pml_ucx_opal_mem_hooks"];
        let off = Off::beside(|name| theirs.contains(&name));
        let has = |name: &str| off.set.iter().any(|(n, _)| *n == name);
        assert!(!has("UCX_MEM_EVENTS") && !has("OMPI_MCA_opal_common_ucx_opal_mem_hooks"));
        assert!(has("UCX_IB_REG_METHODS") && has("FI_MR_CACHE_MAX_COUNT"));
        let said = off.said();
        assert!(said.contains("UCX_RCACHE_ENABLE=n"), "{said}");
        assert!(
            said.ends_with(
                "; as you have set them: UCX_MEM_EVENTS OMPI_MCA_pml_ucx_opal_mem_hooks"
            ),
            "{said}"
        );
        let none = Off::beside(|_| true);
        assert!(none.set.is_empty() && none.said().starts_with("--no-caches sets nothing;"));
        assert!(Off::beside(|_| false).said().ends_with("leave_pinned=0"));
    }
}
