"""Switches of torch that a traced program flips."""

import pytest
import torch

from autosp.modes import restored_modes


def test_modes_are_restored_after_an_error_inside_a_region():
    entered = []
    with pytest.raises(ValueError, match="in the middle"), restored_modes():
        entered.append(torch.amp.autocast_mode._enter_autocast("cpu", torch.float16, True, None))
        torch.set_grad_enabled(False)
        assert torch.is_autocast_enabled("cpu")
        raise ValueError("in the middle")
    assert not torch.is_autocast_enabled("cpu")
    assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    assert torch.is_grad_enabled()
    assert torch.autocast_increment_nesting() == 1
    torch.autocast_decrement_nesting()


def test_modes_of_the_caller_stay():
    with torch.autocast("cpu", torch.float16), torch.no_grad():
        with restored_modes():
            torch.set_grad_enabled(True)
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == torch.float16
        assert not torch.is_grad_enabled()
