//! What a search tells those who asked for it.

use super::apply::Applied;
use super::refused;
use regall_directory::addr::PageRange;
use regall_sys::Errno;

/// What came of looking for sites.
#[derive(Default, Clone, Copy, Debug)]
pub struct Report {
    /// Sites patched.
    pub patched: u32,
    /// Sites that matter or may matter and could not be patched, and sites that
    /// the code can also jump past the patch of. Those of an earlier search do not count.
    pub refused: u32,
    /// Sites that were ours already.
    pub already: u32,
    /// Why code could not be written or a zone not be mapped, if that is why.
    pub write_errno: Option<Errno>,
    /// Memory that the patcher mapped for trampolines, `r-xp`; if all four are
    /// taken, ask [`super::zones`].
    pub new_zones: [Option<PageRange>; 4],
    /// Memory that it mapped for its table of sites, `rw-p`.
    pub new_table: Option<PageRange>,
    /// Memory of both kinds that it needs no more, and that is still mapped: for
    /// whoever takes it out of the ledger first.
    pub gone: [Option<PageRange>; 5],
    /// Whether a site for calls that are cancellation points was left alone.
    pub cancellable: bool,
    /// The patcher's lock could not be had in time: whoever has it searches the range
    /// before it lets go.
    pub busy: bool,
    /// Addresses of the first sites refused; 0: none.
    pub first_refused: [u64; 8],
}

impl Report {
    pub(super) fn busy() -> Self {
        Self {
            busy: true,
            ..Self::default()
        }
    }

    pub(super) fn refuse(&mut self, site: u64) {
        if !refused::is_new(site) {
            return;
        }
        self.refused = self.refused.saturating_add(1);
        if let Some(free) = self.first_refused.iter_mut().find(|at| **at == 0) {
            *free = site;
        }
    }

    pub(super) fn map(&mut self, applied: &Applied) {
        let free = self.new_zones.iter_mut().find(|z| z.is_none());
        if let (Some(_), Some(free)) = (applied.zone, free) {
            *free = applied.zone;
        }
        self.let_go(applied.gone);
        if let Some((new, old)) = applied.table {
            match self.new_table.replace(new) {
                // Nobody has been told of it.
                Some(between) => super::unmap(between),
                None => self.let_go(old),
            }
        }
    }

    /// What there is no place for stays mapped, and is the shim's to everyone.
    fn let_go(&mut self, gone: Option<PageRange>) {
        let free = self.gone.iter_mut().find(|g| g.is_none());
        if let (Some(_), Some(free)) = (gone, free) {
            *free = gone;
        }
    }
}
