//! What processes left, record by record. Nothing here trusts what it reads: a process may have
//! died in the midst of it, and somebody else may have written to the file.

use std::rc::Rc;

use regall_checking::record::{Head, Kind, Sums, HEAD_BYTES, HEAD_WORDS, REGISTERS, STACKS};

/// A stack as it was copied.
pub struct Raw {
    /// Instruction, stack and frame pointer.
    pub registers: [u64; REGISTERS],
    /// From the stack pointer on.
    pub bytes: Vec<u8>,
}

/// A mapping that can be executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub offset: u64,
    pub path: String,
}

/// A record about a registration.
pub struct Record {
    pub head: Head,
    pub kind: Kind,
    pub stacks: [Option<Raw>; STACKS],
    /// What could be executed then.
    pub code: Rc<Vec<Mapping>>,
}

/// What one program image left.
#[derive(Default)]
pub struct Image {
    pub pid: u32,
    pub exe: String,
    pub records: Vec<Record>,
    pub sums: Option<Sums>,
    /// It can't be read to its end.
    pub damaged: bool,
}

/// The images that left `bytes`.
pub fn images(bytes: &[u8]) -> Vec<Image> {
    let mut images: Vec<Image> = Vec::new();
    let mut code = Rc::new(Vec::new());
    let mut rest = bytes;
    while !rest.is_empty() {
        let Some((head, payload, behind)) = next(rest) else {
            match images.last_mut() {
                Some(image) => image.damaged = true,
                None => images.push(Image {
                    damaged: true,
                    ..Image::default()
                }),
            }
            break;
        };
        rest = behind;
        let Some(kind) = Kind::from_number(head.kind) else {
            continue;
        };
        if kind == Kind::Begin || images.is_empty() {
            images.push(Image {
                pid: head.pid as u32,
                ..Image::default()
            });
        }
        let Some(image) = images.last_mut() else {
            break;
        };
        let (stacks, text) = parts(&head, payload);
        match kind {
            Kind::Begin => image.exe = String::from_utf8_lossy(text).into_owned(),
            Kind::Maps => {
                let mut list = match head.brief {
                    0 => Vec::new(),
                    _ => Vec::clone(&code),
                };
                list.extend(String::from_utf8_lossy(text).lines().filter_map(mapping));
                code = Rc::new(list);
            }
            Kind::End => image.sums = Some(Sums::of(&head)),
            kind => image.records.push(Record {
                head,
                kind,
                stacks,
                code: Rc::clone(&code),
            }),
        }
    }
    images
}

/// The first record, what is behind its head, and what is behind it.
fn next(bytes: &[u8]) -> Option<(Head, &[u8], &[u8])> {
    let mut words = [0; HEAD_WORDS];
    for (word, raw) in words.iter_mut().zip(bytes.get(..HEAD_BYTES)?.chunks(8)) {
        *word = u64::from_ne_bytes(raw.try_into().ok()?);
    }
    let head = Head::from_words(&words)?;
    let bytes = bytes.get(HEAD_BYTES..)?;
    let (payload, rest) = bytes.split_at_checked(head.bytes as usize - HEAD_BYTES)?;
    Some((head, payload, rest))
}

fn parts<'a>(head: &Head, payload: &'a [u8]) -> ([Option<Raw>; STACKS], &'a [u8]) {
    let mut rest = payload;
    let mut stacks = [const { None }; STACKS];
    for (n, stack) in stacks.iter_mut().enumerate() {
        let bytes = head.stack_bytes(n);
        let room = Head::stack_room(bytes) as usize;
        let (mine, behind) = rest.split_at_checked(room).unwrap_or((&[], &[]));
        rest = behind;
        *stack = raw(mine, bytes as usize);
    }
    (stacks, rest.get(..head.text as usize).unwrap_or(&[]))
}

fn raw(bytes: &[u8], len: usize) -> Option<Raw> {
    let (first, rest) = bytes.split_at_checked(REGISTERS * 8)?;
    let mut registers = [0; REGISTERS];
    for (to, word) in registers.iter_mut().zip(first.chunks(8)) {
        *to = u64::from_ne_bytes(word.try_into().ok()?);
    }
    let bytes = rest.get(..len)?.to_vec();
    Some(Raw { registers, bytes })
}

fn mapping(line: &str) -> Option<Mapping> {
    let mut words = line.splitn(4, ' ');
    let mut number = || u64::from_str_radix(words.next()?, 16).ok();
    let (start, end, offset) = (number()?, number()?, number()?);
    let path = words.next()?;
    // A file that was removed may still be there by another name, but not by this one.
    let path = path.strip_suffix(" (deleted)").unwrap_or(path).to_string();
    Some(Mapping {
        start,
        end,
        offset,
        path,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(head: Head, payload: &[u8]) -> Vec<u8> {
        let bytes = (HEAD_BYTES + payload.len()) as u64;
        let head = Head { bytes, ..head };
        let words = head.words();
        let mut all: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        all.extend(payload);
        all
    }

    fn text(kind: Kind, text: &str) -> Vec<u8> {
        let head = Head {
            kind: kind as u64,
            pid: 9,
            text: text.len() as u64,
            ..Head::default()
        };
        let mut payload = text.as_bytes().to_vec();
        payload.resize(payload.len().next_multiple_of(8), 0);
        record(head, &payload)
    }

    fn gone() -> Vec<u8> {
        let head = Head {
            kind: Kind::Gone as u64,
            pid: 9,
            id: 3,
            ..Head::default()
        };
        let mut payload: Vec<u8> = [1u64, 2, 3].iter().flat_map(|w| w.to_ne_bytes()).collect();
        payload.extend([7; 16]);
        record(head.with_stack(1, 13), &payload)
    }

    fn all() -> Vec<u8> {
        let code = "1000 2000 0 /a b\n3000 4000 1000 \nnonsense\n";
        [
            text(Kind::Begin, "/bin/x"),
            text(Kind::Maps, code),
            gone(),
            text(Kind::End, ""),
        ]
        .concat()
    }

    #[test]
    fn records_come_back() {
        let images = images(&all());
        let [image] = &images[..] else {
            panic!("{}", images.len())
        };
        assert_eq!((image.pid, image.exe.as_str()), (9, "/bin/x"));
        assert!(image.sums.is_some() && !image.damaged);
        let [record] = &image.records[..] else {
            panic!("{}", image.records.len())
        };
        assert!(record.stacks[0].is_none());
        let raw = record.stacks[1].as_ref().unwrap();
        assert_eq!((raw.registers, &raw.bytes[..]), ([1, 2, 3], &[7; 13][..]));
        assert_eq!(record.code.len(), 2);
        assert_eq!(record.code[0].path, "/a b");
    }

    /// A process that died, or that executes another program.
    #[test]
    fn what_is_cut_is_damaged_and_what_goes_on_is_another_image() {
        let whole = all();
        for cut in 1..whole.len() {
            let images = images(&whole[..cut]);
            assert_eq!(images.len(), 1, "{cut}");
            let boundary = [
                text(Kind::Begin, "/bin/x").len(),
                whole.len() - HEAD_BYTES,
                whole.len() - HEAD_BYTES - gone().len(),
            ];
            assert_eq!(images[0].damaged, !boundary.contains(&cut), "{cut}");
        }
        assert_eq!(images(&[all(), all()].concat()).len(), 2);
        assert!(images(&[]).is_empty());
        assert!(images(&[1; 999])[0].damaged);
    }
}
