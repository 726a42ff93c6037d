namespace dragoman::DRAGOMAN_ISA {
constexpr LinearKernels linear_kernels{};
}
