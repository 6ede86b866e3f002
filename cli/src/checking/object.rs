//! Files that are mapped: what an unwinder, and whoever looks for names, need of them.

use std::cell::OnceCell;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use framehop::ExplicitModuleSectionInfo;
use gimli::{EndianArcSlice, RunTimeEndian};
use object::{Object as _, ObjectSection, ObjectSegment, ObjectSymbol};

use crate::files::{self, Whose};

/// Bytes of a program or a library, at the most.
const LONGEST: u64 = 1 << 30;

/// What sections are held as.
pub type Bytes = Arc<[u8]>;
type Reader = EndianArcSlice<RunTimeEndian>;

/// A function in a file.
struct Symbol {
    start: u64,
    bytes: u64,
    name: String,
}

/// A file's segment that can be executed.
struct Segment {
    address: u64,
    offset: u64,
    bytes: u64,
}

/// A file that is mapped.
pub struct Object {
    data: Vec<u8>,
    segments: Vec<Segment>,
    symbols: Vec<Symbol>,
    /// Its build id.
    pub build_id: Option<String>,
    lines: OnceCell<Option<addr2line::Context<Reader>>>,
}

/// A place in the source.
pub struct Place {
    pub function: Option<String>,
    pub file: Option<String>,
    pub line: Option<u32>,
}

impl Object {
    /// Reads a file. `None`: it is not there, or none that can be executed.
    pub fn read(path: &Path) -> Option<Rc<Self>> {
        let data = files::read(path, Whose::Others, LONGEST).ok()?;
        let file = object::File::parse(&*data).ok()?;
        let executable = |flags| match flags {
            object::SegmentFlags::Elf { p_flags } => p_flags & object::elf::PF_X != 0,
            _ => false,
        };
        let segments = file.segments().filter(|s| executable(s.flags()));
        let segments = segments.map(|s| Segment {
            address: s.address(),
            offset: s.file_range().0,
            bytes: s.file_range().1,
        });
        let segments = segments.collect();
        let mut symbols: Vec<_> = file
            .symbols()
            .chain(file.dynamic_symbols())
            .filter(|s| s.kind() == object::SymbolKind::Text && s.address() != 0)
            .filter_map(|s| {
                Some(Symbol {
                    start: s.address(),
                    bytes: s.size(),
                    name: s.name().ok()?.to_string(),
                })
            })
            .collect();
        // Of several names the one that is called, not an alias that begins with underscores.
        symbols.sort_by(|a, b| {
            (a.start, b.name.starts_with('_')).cmp(&(b.start, a.name.starts_with('_')))
        });
        let build_id = file.build_id().ok().flatten();
        let build_id = build_id.map(|id| id.iter().map(|b| format!("{b:02x}")).collect());
        Some(Rc::new(Self {
            segments,
            symbols,
            build_id,
            lines: OnceCell::new(),
            data,
        }))
    }

    /// What has to be added to addresses in the file, if it is mapped at `start` from `offset` on.
    pub fn base(&self, start: u64, offset: u64) -> Option<u64> {
        let holds = |s: &&Segment| (s.offset & !0xfff..s.offset + s.bytes).contains(&offset);
        let segment = self.segments.iter().find(holds)?;
        let address = segment
            .address
            .wrapping_sub(segment.offset)
            .wrapping_add(offset);
        Some(start.wrapping_sub(address))
    }

    /// The function that `address`, in the file, is in.
    pub fn function(&self, address: u64) -> Option<String> {
        let behind = self.symbols.partition_point(|s| s.start <= address);
        // Those that begin at the same place stand side by side, the best name last.
        let symbol = self.symbols.get(behind.checked_sub(1)?)?;
        let inside = address - symbol.start < symbol.bytes.max(1);
        inside.then(|| addr2line::demangle_auto((&symbol.name).into(), None).into_owned())
    }

    /// Where in the source `address` is, innermost first: several, where functions were inlined.
    pub fn places(&self, address: u64) -> Vec<Place> {
        let lines = self.lines.get_or_init(|| self.read_lines());
        let Some(context) = lines else {
            return Vec::new();
        };
        let Ok(mut frames) = context.find_frames(address).skip_all_loads() else {
            return Vec::new();
        };
        let mut places = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            let name = frame.function.as_ref();
            let name = name.and_then(|f| f.demangle().ok().map(|n| n.into_owned()));
            places.push(Place {
                function: name,
                file: frame
                    .location
                    .as_ref()
                    .and_then(|l| l.file.map(String::from)),
                line: frame.location.as_ref().and_then(|l| l.line),
            });
        }
        places.retain(|p| p.function.is_some() || p.line.is_some());
        places
    }

    fn read_lines(&self) -> Option<addr2line::Context<Reader>> {
        let file = object::File::parse(&*self.data).ok()?;
        file.section_by_name(".debug_line")?;
        let load = |id: gimli::SectionId| -> Result<Reader, gimli::Error> {
            let section = file.section_by_name(id.name());
            // One that is compressed is left out.
            let data = section.and_then(|s| match s.compressed_file_range() {
                Ok(range) if range.format == object::CompressionFormat::None => s.data().ok(),
                _ => None,
            });
            let bytes: Bytes = data.unwrap_or_default().into();
            Ok(EndianArcSlice::new(bytes, RunTimeEndian::Little))
        };
        let dwarf = gimli::Dwarf::load(load).ok()?;
        addr2line::Context::from_dwarf(dwarf).ok()
    }

    /// What the unwinder needs.
    pub fn sections(&self) -> Option<ExplicitModuleSectionInfo<Bytes>> {
        let file = object::File::parse(&*self.data).ok()?;
        let range = |name: &str| -> Option<Range<u64>> {
            let section = file.section_by_name(name)?;
            Some(section.address()..section.address() + section.size())
        };
        let data =
            |name: &str| -> Option<Bytes> { Some(file.section_by_name(name)?.data().ok()?.into()) };
        Some(ExplicitModuleSectionInfo {
            base_svma: 0,
            text_svma: range(".text"),
            got_svma: range(".got"),
            eh_frame_svma: range(".eh_frame"),
            eh_frame: data(".eh_frame"),
            eh_frame_hdr_svma: range(".eh_frame_hdr"),
            eh_frame_hdr: data(".eh_frame_hdr"),
            ..ExplicitModuleSectionInfo::default()
        })
    }
}
