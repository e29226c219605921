use bitnet_kernels::{Backend, Reference, RowsKind, gpu::Gpu};
use bitnet_tensor::{BitNetTensor, DType, SharedBytes};
use bitnet_tests::Simulator;

#[test]
fn embeddings_are_the_rows_of_the_table_rounded_to_bf16() {
    for width in [1, 8, 17, 192, 1026, 2560] {
        let values = (0..9 * width).map(|i| (i as f32 * 0.37).sin() * 1e3);
        let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        let table = BitNetTensor::new(DType::F32, [9, width], SharedBytes::new(bytes)).unwrap();
        let tokens = [8, 0, 3, 3];
        let mut gpu = Gpu::new(Simulator::default()).unwrap();
        let on_gpu = gpu.table(&table).unwrap();
        let mut out = gpu.rows(5, width, RowsKind::Residual).unwrap();
        gpu.embed(&on_gpu, &tokens, 1.0, &mut out).unwrap();
        let mut reference = Reference::bf16();
        let table = reference.table(&table).unwrap();
        let mut expected = reference.rows(5, width, RowsKind::Residual).unwrap();
        reference.embed(&table, &tokens, 1.0, &mut expected).unwrap();
        assert_eq!(gpu.read_rows(&out, 5).unwrap(), reference.read(&expected, 5).unwrap(), "width {width}");
    }
}
