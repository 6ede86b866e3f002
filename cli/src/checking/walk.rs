//! From copied stacks to frames with names: by call-frame information, as debuggers and
//! exceptions do it, so that no frame pointer is needed.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::rc::Rc;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{FrameAddress, Module, Unwinder};
use regall_documents::{Stack, StackFrame};

use super::object::{Bytes, Object};
use super::records::{Mapping, Raw};

/// Frames of a stack at the most.
const FRAMES: usize = 128;

/// The files that have been read.
#[derive(Default)]
pub struct Files(HashMap<String, Option<Rc<Object>>>);

impl Files {
    fn object(&mut self, path: &str) -> Option<Rc<Object>> {
        if !path.starts_with('/') {
            return None;
        }
        let read = || Object::read(Path::new(path));
        self.0.entry(path.to_string()).or_insert_with(read).clone()
    }

    /// The frames of a stack on which `what` happened.
    pub fn walk(&mut self, what: &str, raw: &Raw, code: &[Mapping]) -> Stack {
        let (addresses, whole) = self.addresses(raw, code);
        let mut frames = Vec::new();
        for address in addresses {
            frames.extend(self.frames(address, code));
        }
        let ours = |f: &StackFrame| f.module.as_deref().is_some_and(is_ours);
        // Inside a hook the program's own frames begin behind ours.
        let first = frames.iter().rposition(ours).map_or(0, |n| n + 1);
        Stack {
            what: what.to_string(),
            whole,
            frames: frames.split_off(first),
        }
    }

    /// The addresses to look up, and whether the walk came to the stack's end.
    fn addresses(&mut self, raw: &Raw, code: &[Mapping]) -> (Vec<u64>, bool) {
        let [instruction, stack, frame] = raw.registers;
        let mut registers = UnwindRegsX86_64::new(instruction, stack, frame);
        let mut unwinder: UnwinderX86_64<Bytes> = UnwinderX86_64::new();
        let mut cache = CacheX86_64::<_>::new();
        let mut read = |at: u64| word(raw, at).ok_or(());
        let mut known = HashSet::new();
        let mut address = FrameAddress::from_instruction_pointer(instruction);
        let mut found = Vec::new();
        while found.len() < FRAMES {
            let at = address.address_for_lookup();
            let Some(mapping) = code.iter().find(|m| (m.start..m.end).contains(&at)) else {
                return (found, false);
            };
            if known.insert(mapping.start) {
                match self.module(mapping) {
                    Some(module) => unwinder.add_module(module),
                    // Without its information the walk would go astray.
                    None => {
                        found.push(at);
                        return (found, false);
                    }
                }
            }
            found.push(at);
            match unwinder.unwind_frame(address, &mut registers, &mut cache, &mut read) {
                Ok(Some(next)) => match FrameAddress::from_return_address(next) {
                    Some(next) => address = next,
                    None => return (found, true),
                },
                Ok(None) => return (found, true),
                Err(_) => return (found, false),
            }
        }
        (found, false)
    }

    fn module(&mut self, mapping: &Mapping) -> Option<Module<Bytes>> {
        let object = self.object(&mapping.path)?;
        let base = object.base(mapping.start, mapping.offset)?;
        let range = mapping.start..mapping.end;
        Some(Module::new(
            mapping.path.clone(),
            range,
            base,
            object.sections()?,
        ))
    }

    /// The frames at an address: more than one where functions were inlined.
    fn frames(&mut self, at: u64, code: &[Mapping]) -> Vec<StackFrame> {
        let mut frame = StackFrame {
            address: format!("{at:#x}"),
            function: None,
            file: None,
            line: None,
            module: None,
            offset: None,
            build_id: None,
        };
        let Some(mapping) = code.iter().find(|m| (m.start..m.end).contains(&at)) else {
            return vec![frame];
        };
        frame.module = (!mapping.path.is_empty()).then(|| mapping.path.clone());
        let object = self.object(&mapping.path);
        let base = object
            .as_ref()
            .and_then(|o| o.base(mapping.start, mapping.offset));
        let (Some(object), Some(base)) = (object, base) else {
            return vec![frame];
        };
        let inside = at.wrapping_sub(base);
        frame.offset = Some(format!("{inside:#x}"));
        frame.build_id = object.build_id.clone();
        let places = object.places(inside);
        if places.is_empty() {
            frame.function = object.function(inside);
            return vec![frame];
        }
        let named = places.into_iter().map(|place| StackFrame {
            function: place.function,
            file: place.file,
            line: place.line,
            ..frame.clone()
        });
        named.collect()
    }
}

/// Whether a file is the shim.
fn is_ours(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.starts_with("libregall.so")
}

/// A word of the stack.
fn word(raw: &Raw, at: u64) -> Option<u64> {
    let from = usize::try_from(at.checked_sub(raw.registers[1])?).ok()?;
    let bytes = raw.bytes.get(from..from.checked_add(8)?)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}
