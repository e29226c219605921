//! What the parser accepts, and what it refuses with line and reason.

use bitnet_ptxsim::{Module, ParseErrorKind};

use super::support::kernel;

/// The error of a kernel with this body, and its line in the body, from one.
fn refused(body: &str) -> (usize, ParseErrorKind) {
    let text = kernel(body);
    let error = Module::parse("bad.ptx", &text).expect_err(body);
    let first = kernel("").lines().position(|line| line.contains("add.u64 mo")).unwrap() + 1;
    (error.line as usize - first, error.kind)
}

#[test]
fn unknown_instructions_and_modifiers_are_named() {
    for text in [
        "vadd.u32 r0, r1, r2",
        "mul.u32 r0, r1, r2",
        "add.f16 h0, h1, h2",
        "cvt.f32.bf16 f0, h0",
        "ld.u32 r0, [gi]",
        "add.f32 f0, f1, f2",
        "prmt.b32 r0, r1, r2, r3",
        "match.any.sync.b32 r0, r1, 0xffffffff",
        "red.global.add.s32 [gi], r0",
        "cvt.s32.f32 r0, f0",
        "fma.f32 f0, f0, f0, f0",
        "shfl.idx.b32 r0, r1, 0, 0x1f",
        "barrier.sync 0",
        "red.global.exch.b32 [gi], r0",
        "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {c0,c1,c2,c3}, {a0,a1,a2,a3}, {b0,b1}, {c0,c1,c2,c3}",
    ] {
        let instruction = text.split(' ').next().unwrap().to_string();
        assert_eq!(
            refused(&format!("\n{text};")),
            (2, ParseErrorKind::Instruction { instruction }),
            "{text}"
        );
    }
    for (text, modifier) in [
        ("add.rz.f32 f0, f1, f2", "rz"),
        ("ld.global.v8.u32 r0, [gi]", "v8"),
        ("ld.acquire.global.u32 r0, [gi]", "acquire"),
        ("membar.gl.cta", "cta"),
        ("add.wide.u32 r0, r1, r2", "wide"),
        ("setp.lt.sat.u32 p, r0, r1", "sat"),
        ("ldmatrix.sync.aligned.m8n8.x4.trans.trans.shared.b16 {a0, a1, a2, a3}, [s]", "trans"),
    ] {
        let instruction = text.split(' ').next().unwrap().to_string();
        match refused(&format!("{text};")) {
            (1, ParseErrorKind::Modifier { modifier: found, .. }) => assert_eq!(found, modifier),
            (1, ParseErrorKind::Instruction { instruction: found }) => assert_eq!(found, instruction),
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn operands_must_fit_their_instruction() {
    for (text, position) in [
        ("add.u32 r0, d0, r1", 2),
        ("add.rn.f32 f0, f1, 1", 3),
        ("add.s32 f0, r1, r1", 1),
        ("add.u64 d0, d1, r0", 3),
        ("ld.global.u32 r0, [r1]", 2),
        ("ld.shared.u32 r0, [h0]", 2),
        ("st.global.u32 [gi], p", 2),
        ("ld.global.v2.b32 {r0, r1, r2}, [gi]", 1),
        ("ld.global.u64 r0, [gi]", 1),
        ("ld.param.u64 d0, [count]", 2),
        ("selp.b32 r0, r1, r2, r3", 4),
        ("mov.b32 r0, 0x100000000", 2),
        ("sub.u32 r0, r0, s", 3),
        ("st.shared.b32 [s], s", 2),
        ("bar.sync f0", 1),
        ("bfe.u32 r0, r1, r2, 3", 3),
        ("shfl.sync.idx.b32 r0, r1, 0, 31, 0xffff", 5),
        ("cp.async.cg.shared.global [s], [gi], 8", 3),
        ("cp.async.wait_group r0", 1),
        ("mul.wide.u32 r0, r1, r2", 1),
    ] {
        match refused(&format!("{text};")) {
            (1, ParseErrorKind::Operand { position: found, .. }) => assert_eq!(found, position, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
    let count = ParseErrorKind::OperandCount { instruction: "add.u32".into(), expected: 3, found: 2 };
    assert_eq!(refused("add.u32 r0, r1;"), (1, count));
}

#[test]
fn names_must_be_declared_once() {
    let undeclared = |name: &str| (1, ParseErrorKind::Undeclared { name: name.into() });
    assert_eq!(refused("add.u32 r0, r1, r99;"), undeclared("r99"));
    assert_eq!(refused("bra NOWHERE;"), undeclared("NOWHERE"));
    assert_eq!(refused("@x bra OUT; OUT:"), undeclared("x"));
    assert_eq!(refused("ld.global.u32 r0, [nothing];"), undeclared("nothing"));
    let twice = |name: &str| (1, ParseErrorKind::Duplicate { name: name.into() });
    assert_eq!(refused(".reg .b32 r3;"), twice("r3"));
    assert_eq!(refused("L: L:"), twice("L"));
    assert_eq!(refused("bra r1; r1:"), twice("r1"));
    assert_eq!(refused("L: .reg .b32 L;"), twice("L"));
    assert_eq!(refused("mov.u32 r0, L; L:"), undeclared("L"));
    let operand = ParseErrorKind::Expected { expected: "an operand, not a label", found: "L".into() };
    assert_eq!(refused("L: mov.u32 r0, L;"), (1, operand));
    assert_eq!(refused(".shared .b32 s[4];"), twice("s"));
}

#[test]
fn grammar_errors_name_what_was_expected() {
    let expected = |body: &str| match refused(body) {
        (line, ParseErrorKind::Expected { expected, found }) => (line, expected, found),
        other => panic!("{other:?}"),
    };
    assert_eq!(expected("mov.u32 r0, 1\nmov.u32 r1, 2;").2, "mov.u32");
    assert_eq!(expected("mov.u32 r0, é;"), (1, "PTX in ASCII", "é".into()));
    assert_eq!(expected("ld.global.u32 r0, [gi*4];").1, "PTX in ASCII");
    assert_eq!(expected(".reg .f65 x;").1, "a register type");
    assert_eq!(expected(".shared .align 3 .b32 t[4];").2, "3");
    assert_eq!(expected("bra OUT extra; OUT:").1, ";");
    // Control must not reach the end of the text.
    let text = kernel("").replace("  ret;\n", "");
    let error = Module::parse("bad.ptx", &text).unwrap_err();
    assert!(
        matches!(error.kind, ParseErrorKind::Expected { expected: "`ret` at the end of the kernel", .. }),
        "{error}"
    );
}

#[test]
fn other_targets_and_directives_are_refused() {
    let text = kernel("");
    for (from, to) in [
        (".version 7.4", ".version 8.1"),
        (".version 7.4", ".version 8.0"),
        (".target sm_80", ".target sm_90a"),
        (".address_size 64", ".address_size 32"),
        (".extern", ".const"),
        ("count)", "count) .cluster"),
        ("  .shared", "  .local"),
    ] {
        let error = Module::parse("bad.ptx", &text.replacen(from, to, 1)).unwrap_err();
        assert!(matches!(error.kind, ParseErrorKind::Directive { .. }), "{to}: {error}");
    }
    assert_eq!(
        Module::parse("bad.ptx", "\n\n.version 8.1").unwrap_err().to_string(),
        "bad.ptx:3: `.version 8.1` is not supported: this simulator reads `.version 7.4`, `.target sm_80` and \
         `.version 8.0`, `.target sm_90`"
    );
    assert!(Module::parse("bad.ptx", &text.replace(".version 7.4", "")).is_err());
}

#[test]
fn comments_percent_names_and_several_entries_are_taken() {
    let text = ".version 7.4 // a comment\n.target sm_80\n/* .version 9.9\n */ .address_size 64
        .visible .entry one(.param .u64 %a, .param .f32 b) .maxntid 32, 1, 1 .minnctapersm 2
        { .reg .b32 %r<3>; $L_0: mov.u32 %r0, %tid.x; ret; }
        .visible .entry two() { exit; }";
    let module = Module::parse("two.ptx", text).unwrap();
    assert_eq!(module.entries().collect::<Vec<_>>(), ["one", "two"]);
    assert!(Module::parse("two.ptx", &text.replace("two", "one")).is_err());
}
