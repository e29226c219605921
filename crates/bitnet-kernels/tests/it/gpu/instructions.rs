use bitnet_kernels::gpu::instructions::INSTRUCTIONS;
use bitnet_tests::Simulator;

#[test]
fn every_instruction_gives_the_manuals_bits() {
    let mut driver = Simulator::default();
    let wrong: Vec<String> =
        INSTRUCTIONS.iter().filter_map(|i| i.check(&mut driver).err()).map(|e| e.to_string()).collect();
    assert!(wrong.is_empty() && INSTRUCTIONS.len() > 200, "{}", wrong.join("\n"));
}
