//! Instructions of a whole warp, lane by lane.

use bitnet_ptxsim::Launch;

use super::support::run;

/// Runs `text` with each lane's number in `r0` and its square in `r1`; the result is read from `r2`.
fn per_lane(text: &str) -> Vec<u32> {
    let body = format!("mov.u32 r0, tid; mul.lo.u32 r1, r0, r0;\n{text};\nst.global.u32 [mo], r2;");
    run(&body, &Launch::new(1, 32), &[0], 32)
}

fn lanes(f: impl Fn(u32) -> u32) -> Vec<u32> {
    (0..32).map(f).collect()
}

#[test]
fn shuffles_move_values_as_the_manual_says() {
    let all = "0xffffffff";
    let shfl =
        |mode: &str, b: &str, c: &str| per_lane(&format!("shfl.sync.{mode}.b32 r2, r1, {b}, {c}, {all}"));
    assert_eq!(shfl("bfly", "5", "0x1f"), lanes(|l| (l ^ 5).pow(2)));
    assert_eq!(shfl("idx", "7", "0x1f"), lanes(|_| 49));
    assert_eq!(shfl("up", "3", "0"), lanes(|l| if l < 3 { l } else { l - 3 }.pow(2)));
    // Segments of eight lanes: `c` has the mask 0x18 in the upper byte and clamps within the segment.
    assert_eq!(shfl("idx", "2", "0x181f"), lanes(|l| (l / 8 * 8 + 2).pow(2)));
    assert_eq!(shfl("up", "1", "0x1800"), lanes(|l| if l % 8 == 0 { l } else { l - 1 }.pow(2)));
}

#[test]
fn shuffle_predicate_says_whether_the_source_is_in_range() {
    let got = per_lane("shfl.sync.up.b32 r3|p, r1, 4, 0, 0xffffffff; selp.b32 r2, 1, 0, p");
    assert_eq!(got, lanes(|l| u32::from(l >= 4)));
}

#[test]
fn votes_count_the_lanes_whose_predicate_holds() {
    let vote = |text: &str| per_lane(&format!("setp.lt.u32 p, r0, 5; {text}"));
    assert_eq!(vote("vote.sync.ballot.b32 r2, p, 0xffffffff"), lanes(|_| 31));
    assert_eq!(vote("vote.sync.ballot.b32 r2, !p, 0xffffffff"), lanes(|_| !31));
}

#[test]
fn redux_reduces_over_the_warp() {
    let redux = |op: &str| per_lane(&format!("sub.s32 r3, r0, 10; redux.sync.{op} r2, r3, 0xffffffff"));
    assert_eq!(redux("add.s32"), lanes(|_| 31 * 32 / 2 - 320));
    assert_eq!(redux("min.u32"), lanes(|_| 0));
    assert_eq!(redux("max.u32"), lanes(|_| u32::MAX));
}

#[test]
fn special_registers_know_their_place() {
    let body = "mov.u32 r0, %tid.y; mad.lo.u32 r0, r0, 16, tid; mov.u32 r5, %ctaid.y; mov.u32 r6, %nctaid.x;
      mad.lo.u32 r5, r5, r6, cta; mad.lo.u32 r5, r5, 80, r0; mul.wide.u32 d1, r5, 4; add.u64 d1, go, d1;
      st.global.u32 [d1], r0;";
    let mut launch = Launch::new(1, 1);
    (launch.grid, launch.block) = ([3, 2, 1], [16, 5, 1]);
    let expected: Vec<u32> = (0..6 * 80).map(|i| i % 80).collect();
    assert_eq!(run(body, &launch, &[0], 480), expected);
}
