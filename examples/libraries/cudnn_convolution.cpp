// SPDX-License-Identifier: Apache-2.0
// cuDNN: a convolution forwards and backwards with deterministic algorithms, pooling and softmax.
#include "report.hpp"

#include <cudnn.h>

int main() {
  constexpr int batch = 8, in = 16, out = 32, side = 28;
  cudnnHandle_t handle = nullptr;
  CHECKED(cudnnCreate(&handle));
  cudnnTensorDescriptor_t image = nullptr, output = nullptr, pooled = nullptr;
  cudnnFilterDescriptor_t filter = nullptr;
  cudnnConvolutionDescriptor_t convolution = nullptr;
  CHECKED(cudnnCreateTensorDescriptor(&image));
  CHECKED(cudnnCreateTensorDescriptor(&output));
  CHECKED(cudnnCreateTensorDescriptor(&pooled));
  CHECKED(cudnnCreateFilterDescriptor(&filter));
  CHECKED(cudnnCreateConvolutionDescriptor(&convolution));
  CHECKED(cudnnSetTensor4dDescriptor(image, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, batch, in, side, side));
  CHECKED(cudnnSetTensor4dDescriptor(output, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, batch, out, side, side));
  CHECKED(cudnnSetTensor4dDescriptor(pooled, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, batch, out, side / 2, side / 2));
  CHECKED(cudnnSetFilter4dDescriptor(filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, out, in, 3, 3));
  CHECKED(cudnnSetConvolution2dDescriptor(convolution, 1, 1, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
  CHECKED(cudnnSetConvolutionMathType(convolution, CUDNN_FMA_MATH));

  const std::vector<float> x = numbers<float>(batch * in * side * side, 1), w = numbers<float>(out * in * 9, 2);
  const DeviceVector<float> dx(x), dw(w), dy(batch * out * side * side), gradient_w(w.size()), gradient_x(x.size());
  const float one = 1, zero = 0;
  const auto forward = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
  std::size_t bytes = 0;
  CHECKED(cudnnGetConvolutionForwardWorkspaceSize(handle, image, filter, convolution, output, forward, &bytes));
  const DeviceVector<char> workspace(bytes + (64 << 20));
  CHECKED(cudnnConvolutionForward(handle, &one, image, dx.data(), filter, dw.data(), convolution, forward, workspace.data(), workspace.size(), &zero,
                                  output, dy.data()));
  const std::vector<float> y = dy.host();
  std::vector<double> want;
  std::vector<float> got;
  for (int o = 0; o < out; o += 5) {  // rows of the last image's channels against a plain sum
    for (int row = 0; row < side; row += 9) {
      for (int column = 0; column < side; ++column) {
        double sum = 0;
        for (int c = 0; c < in; ++c)
          for (int i = -1; i <= 1; ++i)
            for (int j = -1; j <= 1; ++j)
              if (row + i >= 0 && row + i < side && column + j >= 0 && column + j < side)
                sum +=
                    static_cast<double>(x[(((batch - 1) * in + c) * side + row + i) * side + column + j]) * w[(o * in + c) * 9 + (i + 1) * 3 + j + 1];
        want.push_back(sum);
        got.push_back(y[(((batch - 1) * out + o) * side + row) * side + column]);
      }
    }
  }
  near("convolution", got, want, 1e-4);
  result("convolution", y);

  CHECKED(cudnnConvolutionBackwardFilter(handle, &one, image, dx.data(), output, dy.data(), convolution, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1,
                                         workspace.data(), workspace.size(), &zero, filter, gradient_w.data()));
  result("gradient of the filter", gradient_w.host());
  CHECKED(cudnnConvolutionBackwardData(handle, &one, filter, dw.data(), output, dy.data(), convolution, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1,
                                       workspace.data(), workspace.size(), &zero, image, gradient_x.data()));
  result("gradient of the image", gradient_x.host());

  cudnnPoolingDescriptor_t pooling = nullptr;
  CHECKED(cudnnCreatePoolingDescriptor(&pooling));
  CHECKED(cudnnSetPooling2dDescriptor(pooling, CUDNN_POOLING_MAX_DETERMINISTIC, CUDNN_NOT_PROPAGATE_NAN, 2, 2, 0, 0, 2, 2));
  const DeviceVector<float> dp(batch * out * side * side / 4);
  CHECKED(cudnnPoolingForward(handle, pooling, &one, output, dy.data(), &zero, pooled, dp.data()));
  result("pooling", dp.host());
  CHECKED(cudnnSoftmaxForward(handle, CUDNN_SOFTMAX_ACCURATE, CUDNN_SOFTMAX_MODE_CHANNEL, &one, pooled, dp.data(), &zero, pooled, dp.data()));
  result("softmax", dp.host());
  CHECKED(cudnnDestroy(handle));
}
