//! `gpu-instructions DEVICE`: runs every instruction of the table on a GPU and compares the results with the manual.
//! Exits with 1 if one differs and with 3 if there is no GPU.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool prints its results")]

use std::process::ExitCode;

use bitnet_kernels::gpu::Cuda;
use bitnet_tests::instructions::INSTRUCTIONS;

fn main() -> ExitCode {
    let device = std::env::args().nth(1).unwrap_or_default();
    let index =
        device.strip_prefix("cuda:").map_or(Some(0), |index| index.parse().ok()).unwrap_or(usize::MAX);
    let mut driver = match Cuda::open(index) {
        Ok(driver) => driver,
        Err(e) => {
            eprintln!("error: {e}");
            return ExitCode::from(3);
        }
    };
    let wrong: Vec<String> = INSTRUCTIONS.iter().filter_map(|case| case.check(&mut driver).err()).collect();
    wrong.iter().for_each(|case| println!("{case}"));
    println!(
        "{} of {} instructions behave as in the manual",
        INSTRUCTIONS.len() - wrong.len(),
        INSTRUCTIONS.len()
    );
    ExitCode::from(u8::from(!wrong.is_empty()))
}
