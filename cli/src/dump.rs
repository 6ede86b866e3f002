//! `regall dump`: the directory, for scripts. The format is an interface.

use std::io::Write;

use anyhow::Context;
use regall_directory::layout::SETTING_GAVE_UP;
use regall_reader::Entry;

use crate::examine::Failure;
use crate::look::look;
use crate::regions::{self, pieces, Regions};
use crate::words::{reason, state, Key};

pub const EXIT_CODES: &str = after_help!(
    "Exit code: 0; 2 if the process can't be looked at.",
    "regall dump 4711",
    "regall-dump"
);

#[derive(clap::Args)]
pub struct Args {
    /// The process
    pid: u32,
}

pub fn dump(args: &Args, out: &mut impl Write) -> anyhow::Result<u8> {
    let look = look(args.pid).with_context(|| args.pid.to_string())?;
    // What is published is what was held: it has let go of all of it.
    if look.header.settings & SETTING_GAVE_UP != 0 {
        anyhow::bail!("{}: {}", args.pid, Failure::GaveUp);
    }
    let (start, generation) = (look.start_time, look.header.generation.get());
    let pid = args.pid;
    writeln!(
        out,
        "# regall 1 pid {pid} start {start} generation {generation} busy {}",
        look.busy
    )?;
    print(&look.entries, &look.regions, out)?;
    Ok(0)
}

/// All lines behind the header: ranges, cut where regions of the primary domain
/// begin and end, then the regions of all other domains.
fn print(entries: &[Entry], regions: &Regions, out: &mut impl Write) -> std::io::Result<()> {
    for entry in entries {
        let attr = &entry.attr;
        for (range, region) in pieces(entry.range, regions.primary()) {
            writeln!(
                out,
                "{:08x}-{:08x} {} {} {} {} {} {} {}",
                range.start(),
                range.end(),
                attr.prot,
                state(attr),
                reason(attr),
                Key(region.map(|r| r.lkey)),
                Key(region.and_then(regions::rkey)),
                attr.pin,
                attr.hca,
            )?;
        }
    }
    for region in regions.others() {
        writeln!(
            out,
            "# key {:08x}-{:08x} {} {} {} {}",
            region.range.start(),
            region.range.end(),
            region.pd,
            region.access,
            Key(Some(region.lkey)),
            Key(regions::rkey(region)),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::fixtures::*;
    use regall_directory::vocab::{Access, Column, Prot, Reason};

    #[test]
    fn as_the_design_has_it() {
        let mut held = entry(0x10, 0x20);
        held.attr.hca = Column::YES;
        let mut text = entry(0x20, 0x30);
        text.attr.prot = Prot::from_call(5, false);
        text.attr.hca = Column::no(Reason::Scope);
        let mut none = entry(0x40, 0x50);
        none.attr.prot = Prot::from_call(0, false);
        none.attr.pin = Column::no(Reason::NoAccess);
        none.attr.hca = Column::no(Reason::NoAccess);
        let mut peers = region(2, 0x10, 0x18, 0x500);
        (peers.pd, peers.access) = (9, Access::from_bits(0x5).unwrap());
        let mut local = region(3, 0x12, 0x14, 0x600);
        (local.access, local.rkey) = (Access::default(), 0);
        let all = vec![
            region(1, 0x08, 0x14, 0x100),
            region(1, 0x14, 0x18, 0x200),
            region(1, 0x1c, 0x24, 0x300),
            peers,
            local,
        ];
        let mut said = Vec::new();
        print(&[held, text, none], &Regions::of_primary(all, 1), &mut said).unwrap();
        let expected = "\
00010000-00014000 rw-p registered - 0x100 0x101 yes yes
00014000-00018000 rw-p registered - 0x200 0x201 yes yes
00018000-0001c000 rw-p registered - - - yes yes
0001c000-00020000 rw-p registered - 0x300 0x301 yes yes
00020000-00024000 r-xp registered - 0x300 0x301 yes scope
00024000-00030000 r-xp registered - - - yes scope
00040000-00050000 ---p excluded no-access - - no-access no-access
# key 00010000-00018000 9 local-write,remote-read 0x500 0x501
# key 00012000-00014000 7 read 0x600 -
";
        assert_eq!(String::from_utf8(said).unwrap(), expected);
    }
}
