"""The builder's methods that look at windows: reductions, pooling, convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Convolutions:
    """What `Op` inherits."""

    def _make(self, kind: str, operands: Sequence[Any] = (), **attributes: Any) -> Any:
        raise NotImplementedError

    def _of_scalars(self, name: str, computation: Any) -> Any:
        raise NotImplementedError

    def reduce(self, init_value: Any, computation: Any, dimensions: Sequence[int]) -> Any:
        """The elements along some dimensions combined by a computation of two scalars."""
        made = self._of_scalars("Reduce", computation)
        return self._make("Reduce", [init_value], computation=made, dimensions=dimensions)

    def reduce_all(self, init_value: Any, computation: Any) -> Any:
        """All elements combined."""
        return self._make("ReduceAll", [init_value], computation=self._of_scalars("ReduceAll", computation))

    def reduce_window(
        self,
        init_value: Any,
        computation: Any,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        padding: Any = "valid",
    ) -> Any:
        """The elements of each window combined."""
        return self._make(
            "ReduceWindow",
            [init_value],
            computation=self._of_scalars("ReduceWindow", computation),
            window_dimensions=window_dimensions,
            window_strides=window_strides,
            padding=padding,
        )

    def select_and_scatter(
        self,
        source: Any,
        init_value: Any,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        select_computation: Any,
        scatter_computation: Any,
        padding: Any = "valid",
    ) -> Any:
        """Each element of `source` combined into the place that is selected of its window: a max pool's gradient."""
        return self._make(
            "SelectAndScatter",
            [source, init_value],
            window_dimensions=window_dimensions,
            window_strides=window_strides,
            select_computation=self._of_scalars("Select", select_computation),
            scatter_computation=self._of_scalars("Scatter", scatter_computation),
            padding=padding,
        )

    def select_and_scatter_with_general_padding(
        self,
        source: Any,
        init_value: Any,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        select_computation: Any,
        scatter_computation: Any,
        padding: Sequence[tuple[int, int]],
    ) -> Any:
        """`select_and_scatter` with a padding for each side of each dimension."""
        return self.select_and_scatter(
            source, init_value, window_dimensions, window_strides, select_computation, scatter_computation, padding
        )

    def max_pool(
        self,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        batch_dimension: int,
        feature_dimension: int,
        spatial_dimensions: Sequence[int],
        padding: str = "valid",
    ) -> Any:
        """The greatest of each window.

        Args:
            kernel_size, stride: of all dimensions, or of the spatial ones.
        """
        return self._make(
            "MaxPool",
            kernel_size=kernel_size,
            stride=stride,
            batch_dimension=batch_dimension,
            feature_dimension=feature_dimension,
            spatial_dimensions=spatial_dimensions,
            padding=padding,
        )

    def conv(
        self,
        kernel: Any,
        window_strides: Sequence[int],
        feature_group_count: int = 1,
        batch_group_count: int = 1,
        padding: Any = "valid",
        precision_config: str | None = None,
    ) -> Any:
        """A convolution of batch, feature, spatial with output, input, spatial."""
        return self._make(
            "Conv",
            [kernel],
            window_strides=window_strides,
            feature_group_count=feature_group_count,
            batch_group_count=batch_group_count,
            padding=padding,
            precision_config=precision_config,
        )

    def conv_with_general_padding(
        self,
        kernel: Any,
        window_strides: Sequence[int],
        padding: Any,
        feature_group_count: int = 1,
        batch_group_count: int = 1,
        precision_config: str | None = None,
    ) -> Any:
        """`conv` with a padding for each side of each spatial dimension."""
        return self._make(
            "ConvWithGeneralPadding",
            [kernel],
            window_strides=window_strides,
            padding=padding,
            feature_group_count=feature_group_count,
            batch_group_count=batch_group_count,
            precision_config=precision_config,
        )

    def conv_with_general_dimensions(
        self,
        kernel: Any,
        window_strides: Sequence[int],
        input_batch_dimension: int,
        input_feature_dimension: int,
        kernel_input_feature_dimension: int,
        kernel_output_feature_dimension: int,
        output_batch_dimension: int,
        output_feature_dimension: int,
        input_spatial_dimensions: Sequence[int],
        kernel_spatial_dimensions: Sequence[int],
        output_spatial_dimensions: Sequence[int],
        padding: Any = "valid",
        feature_group_count: int = 1,
        batch_group_count: int = 1,
        precision_config: str | None = None,
    ) -> Any:
        """A convolution of dimensions in any order."""
        return self._make(
            "ConvWithGeneralDimensions",
            [kernel],
            window_strides=window_strides,
            input_batch_dimension=input_batch_dimension,
            input_feature_dimension=input_feature_dimension,
            kernel_input_feature_dimension=kernel_input_feature_dimension,
            kernel_output_feature_dimension=kernel_output_feature_dimension,
            output_batch_dimension=output_batch_dimension,
            output_feature_dimension=output_feature_dimension,
            input_spatial_dimensions=input_spatial_dimensions,
            kernel_spatial_dimensions=kernel_spatial_dimensions,
            output_spatial_dimensions=output_spatial_dimensions,
            padding=padding,
            feature_group_count=feature_group_count,
            batch_group_count=batch_group_count,
            precision_config=precision_config,
        )

    def conv_general(
        self,
        kernel: Any,
        window_strides: Sequence[int],
        padding: Any,
        input_batch_dimension: int,
        input_feature_dimension: int,
        kernel_input_feature_dimension: int,
        kernel_output_feature_dimension: int,
        output_batch_dimension: int,
        output_feature_dimension: int,
        input_spatial_dimensions: Sequence[int],
        kernel_spatial_dimensions: Sequence[int],
        output_spatial_dimensions: Sequence[int],
        feature_group_count: int = 1,
        batch_group_count: int = 1,
        precision_config: str | None = None,
    ) -> Any:
        """`conv_with_general_dimensions` with a padding for each side."""
        return self._make(
            "ConvGeneral",
            [kernel],
            window_strides=window_strides,
            padding=padding,
            input_batch_dimension=input_batch_dimension,
            input_feature_dimension=input_feature_dimension,
            kernel_input_feature_dimension=kernel_input_feature_dimension,
            kernel_output_feature_dimension=kernel_output_feature_dimension,
            output_batch_dimension=output_batch_dimension,
            output_feature_dimension=output_feature_dimension,
            input_spatial_dimensions=input_spatial_dimensions,
            kernel_spatial_dimensions=kernel_spatial_dimensions,
            output_spatial_dimensions=output_spatial_dimensions,
            feature_group_count=feature_group_count,
            batch_group_count=batch_group_count,
            precision_config=precision_config,
        )

    def conv_general_dilated(
        self,
        kernel: Any,
        window_strides: Sequence[int],
        padding: Any,
        lhs_dilation: Sequence[int],
        rhs_dilation: Sequence[int],
        input_batch_dimension: int,
        input_feature_dimension: int,
        kernel_input_feature_dimension: int,
        kernel_output_feature_dimension: int,
        output_batch_dimension: int,
        output_feature_dimension: int,
        input_spatial_dimensions: Sequence[int],
        kernel_spatial_dimensions: Sequence[int],
        output_spatial_dimensions: Sequence[int],
        feature_group_count: int = 1,
        batch_group_count: int = 1,
        precision_config: str | None = None,
    ) -> Any:
        """`conv_general` with steps between the elements of the operand and of the kernel."""
        return self._make(
            "ConvGeneralDilated",
            [kernel],
            window_strides=window_strides,
            padding=padding,
            lhs_dilation=lhs_dilation,
            rhs_dilation=rhs_dilation,
            input_batch_dimension=input_batch_dimension,
            input_feature_dimension=input_feature_dimension,
            kernel_input_feature_dimension=kernel_input_feature_dimension,
            kernel_output_feature_dimension=kernel_output_feature_dimension,
            output_batch_dimension=output_batch_dimension,
            output_feature_dimension=output_feature_dimension,
            input_spatial_dimensions=input_spatial_dimensions,
            kernel_spatial_dimensions=kernel_spatial_dimensions,
            output_spatial_dimensions=output_spatial_dimensions,
            feature_group_count=feature_group_count,
            batch_group_count=batch_group_count,
            precision_config=precision_config,
        )
