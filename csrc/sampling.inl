namespace dragoman::DRAGOMAN_ISA {

constexpr SamplingKernels sampling_kernels{};

}  // namespace dragoman::DRAGOMAN_ISA
