//! Golden pairs: assembled by gcc, patched, and compared with what is in the tree.

use super::*;

/// The bytes of `source`'s text, and the offset of its label `function_end`.
fn assemble(source: &Path, scratch: &Path) -> (Vec<u8>, Option<usize>) {
    let name = source.file_name().unwrap();
    let object = scratch.join(name).with_extension("o");
    let image = scratch.join(name).with_extension("bin");
    run(Command::new("gcc")
        .args(["-c", "-x", "assembler", "-o"])
        .arg(&object)
        .arg(source));
    run(Command::new("objcopy")
        .args(["-O", "binary", "-j", ".text"])
        .arg(&object)
        .arg(&image));
    let symbols = run(Command::new("nm").arg(&object));
    let end = symbols.lines().find(|l| l.ends_with(" function_end"));
    let end = end.map(|l| usize::from_str_radix(l.split(' ').next().unwrap(), 16).unwrap());
    (std::fs::read(image).unwrap(), end)
}

/// What the patcher makes of `code`, as one image with the trampolines behind it.
fn patched(text: &Text<'_>, bounds: Option<Bounds>) -> (Vec<u8>, Vec<Verdict>) {
    let mut image = text.bytes.to_vec();
    image.resize(TRAMPOLINE, 0);
    let mut verdicts = Vec::new();
    let mut from = 0;
    while let Some(at) = next_syscall(text.bytes, from) {
        from = at + 2;
        let whole = inspect(text, at, &mut room());
        let verdict = if bounds.is_some() {
            inspect_in(text, at, bounds, &mut room())
        } else {
            whole
        };
        verdicts.push(verdict);
        let Verdict::Patch(plan, ..) = verdict else {
            continue;
        };
        let slot = image.len().next_multiple_of(TRAMPOLINE_BYTES);
        let trampoline = plan.trampoline(BASE + slot as u64, &LAYOUT).unwrap();
        let jump = plan.patch(trampoline.start()).unwrap();
        let start = (plan.start() - BASE) as usize;
        image[start..start + jump.bytes().len()].copy_from_slice(jump.bytes());
        image.resize((trampoline.start() - BASE) as usize, 0);
        image.extend(trampoline.bytes());
    }
    (image, verdicts)
}

fn golden(input: &Path, scratch: &Path) {
    let name = input.file_name().unwrap().to_str().unwrap().to_owned();
    let source = std::fs::read_to_string(input).unwrap();
    let marks: BTreeSet<&str> = source
        .lines()
        .next()
        .unwrap()
        .split(['#', ',', ' '])
        .filter(|w| !w.is_empty())
        .collect();
    let (code, end) = assemble(input, scratch);
    let config = Config {
        strict: marks.contains("strict"),
        ioctl: marks.contains("ioctl"),
        verbs: marks.contains("verbs"),
    };
    let text = Text {
        base: BASE,
        bytes: &code,
        libc: marks.contains("libc"),
        module: None,
        config,
        landed: [0; 2],
    };
    let end = BASE + end.unwrap_or(code.len()) as u64;
    let bounds = marks.contains("function").then_some(Bounds {
        start: BASE,
        end,
        lands: false,
    });
    let (image, verdicts) = patched(&text, bounds);
    if name.starts_with("refuse_") {
        let refused = match name.as_str() {
            "refuse_cancellable.in.S" => Verdict::Cancellable,
            _ => Verdict::Refuse,
        };
        assert!(
            !verdicts.is_empty() && verdicts.iter().all(|v| *v == refused),
            "{name}: {verdicts:x?}"
        );
    } else if name.starts_with("ignore_") {
        assert!(
            !verdicts.is_empty() && verdicts.iter().all(|v| *v == Verdict::Nothing),
            "{name}: {verdicts:x?}"
        );
    } else {
        let output = PathBuf::from(input.to_str().unwrap().replace(".in.S", ".out.S"));
        let (expected, _) = assemble(&output, scratch);
        assert!(
            image == expected,
            "{name}: {verdicts:x?}\n     got {image:02x?}\nexpected {expected:02x?}"
        );
    }
}

#[test]
fn golden_pairs() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/golden"));
    let scratch = std::env::temp_dir().join(format!("regall-golden-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).unwrap();
    let mut inputs: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    inputs.retain(|p| p.to_str().unwrap().ends_with(".in.S"));
    assert!(inputs.len() > 20, "{inputs:?}");
    inputs.iter().for_each(|input| golden(input, &scratch));
    std::fs::remove_dir_all(scratch).unwrap();
}
