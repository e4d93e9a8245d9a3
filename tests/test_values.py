"""Values that packages pass to each other."""

from functools import cached_property

from sparkfleet.values import Value


class Sides(Value):
    width: int
    height: int = 1

    @cached_property
    def area(self) -> int:
        return self.width * self.height


def test_a_copy_computes_anew_what_the_original_has_kept():
    one = Sides(width=2)
    assert one.area == 2
    other = one.model_copy(update={"width": 3})
    assert (other.area, one.area, one == Sides(width=2)) == (3, 2, True)
    assert other.model_copy().area == 3
